"""Files that daemon and tenant share: the two pages, the wakeup FIFO and the socket."""
