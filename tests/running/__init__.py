"""How the tests are run: which of them, how many random cases, which process has which servers."""
