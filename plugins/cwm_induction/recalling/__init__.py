"""What was seen before is recalled: a board of which every observation shows a window."""
