"""The file, the environment and the flags of `tandem serve`, read with line numbers and decided once."""
