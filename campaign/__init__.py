"""The fault campaign: real processes, real servers, faults from a seed, and a checker that counts. See README.md."""
