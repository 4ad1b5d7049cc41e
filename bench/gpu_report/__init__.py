"""`python -m bench.gpu_report`: what the CUDA path is worth on this machine, as one JSON file."""
