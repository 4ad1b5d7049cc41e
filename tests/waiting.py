"""How long a test waits for what should come at once.

It bounds a hang and measures nothing: on a busy machine everything takes many times as long, and a
test that passes does not wait.
"""

SOON_S = 60.0
