"""The routes of Parrot's front end, over programs."""
