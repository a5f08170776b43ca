"""What people see on the terminal: work while it runs and when it is over."""
