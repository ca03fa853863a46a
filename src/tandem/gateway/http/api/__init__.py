"""What the console does over HTTP: JSON under `/$tandem/api/`, a file for each noun."""
