"""What clients are shown. Nothing here changes anything."""
