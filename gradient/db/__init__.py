"""The server's side of the database: migrating, deploying, connecting, listening."""
