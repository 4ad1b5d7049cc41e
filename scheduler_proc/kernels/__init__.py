"""The CPU engine: C++ sources in src, how they are compiled (build), how they are called (library).

Importing this package loads nothing; `library.load()` does, and says why where it cannot.
"""
