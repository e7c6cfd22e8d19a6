"""fedpg_br: FedPG-BR, federated policy gradients with Byzantine agents."""
