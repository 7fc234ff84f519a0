"""What all benchmarks share: command line, provenance, files, resumable runs, processes, statistics."""
