"""Pictures and videos that requests bring: where they are named, decoded and fetched."""
