"""GG6: graphs and modes that outlive their use."""
