"""What an operator changes of a running tenant."""
