"""The old data that an update needs: what is kept of everything seen."""
