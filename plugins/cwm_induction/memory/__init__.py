"""What nobody sees and has to be remembered: found in what was seen before, and kept up by a filter."""
