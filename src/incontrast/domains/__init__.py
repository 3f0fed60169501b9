"""The kinds of data: vectors, images, graphs, texts, and what they have in common."""
