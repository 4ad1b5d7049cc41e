"""Reports of runs to a server's page, for who sets SGL_TRACE to its address."""
