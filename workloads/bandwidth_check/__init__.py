"""How fast are the links: collectives of all sizes over all hosts, over each pair of hosts, and inside each host."""
