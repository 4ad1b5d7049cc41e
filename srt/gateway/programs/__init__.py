"""Routes of programs: sessions, submissions, gets and variables."""
