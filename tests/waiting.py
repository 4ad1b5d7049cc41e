"""How long a test waits for what comes at once.

It bounds a hang and measures nothing: beside other work everything takes many times as long, and a
test that passes does not wait.
"""

SOON_S = 60.0
