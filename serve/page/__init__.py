"""A page to talk to a server's models and to watch them work: static files, and the state that they draw."""
