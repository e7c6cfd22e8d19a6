"""The server and the sites of a federation, as processes."""
