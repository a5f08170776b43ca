"""What betters a program without a completion."""
