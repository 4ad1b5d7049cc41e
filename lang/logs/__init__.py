"""Where each call of a run stands, traces and logs: what each answered, so that a run resumes."""
