"""Shares of compute: who is to get what, the scheduler that is told so, what each got."""
