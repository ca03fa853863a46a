"""What operators type against a living namespace, Tandem's or Azure's: everything goes through a connection string."""
