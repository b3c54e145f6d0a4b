"""Tables of a data lake and the files they are made of: what the archive and the sinks of pipelines share."""
