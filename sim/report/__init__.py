"""Floor 6, speak: answers become text a person likes to read."""
