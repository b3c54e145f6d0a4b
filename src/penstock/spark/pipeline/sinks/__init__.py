"""How the batches of a pipeline get into its sinks, each of them once."""
