"""What a store remembers and how it is read back: replay, compaction, what concerns several stores."""
