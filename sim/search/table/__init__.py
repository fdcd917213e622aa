"""The table of all prices, in memory or on disk."""
