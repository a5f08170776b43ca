"""What nobody sees and has to be remembered: found in what was seen, kept up by a filter."""
