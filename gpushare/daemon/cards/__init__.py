"""The cards and their driver: which cards there are, and what a context takes of each."""
