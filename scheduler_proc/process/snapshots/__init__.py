"""What the tree and the queue look like to somebody who watches the server."""
