"""The kinds of data: vectors, images, graphs, and what they have in common."""
