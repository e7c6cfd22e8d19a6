"""FedPG-BR as a Flower app."""
