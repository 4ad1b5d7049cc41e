"""What travels on the ring's sockets: messages and what they hold. Imports nothing of ours."""
