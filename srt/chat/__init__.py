"""`srt chat` and `python -m srt.chat`: a chat in the terminal. `srt run`: one answer.

In a chat, a line that begins with a slash is a command (`/help` lists them); one that ends with a
backslash continues. After each answer come its tokens, their rate, and how much of the prompt was
cached. Ctrl-C ends an answer; at the prompt it clears the line, and twice it ends the chat.
"""
