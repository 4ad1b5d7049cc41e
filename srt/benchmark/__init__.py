"""Measures an OpenAI-compatible server from outside: `srt bench`, and the project's benchmarks."""
