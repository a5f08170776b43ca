"""What rules in words reach: doors, the playground, and beside programs."""
