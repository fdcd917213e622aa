"""Pages: answers as HTML for notebooks, and as one self-contained file to hand on."""
