"""Records of cloud resources that no run owns: machines, volumes, databases."""
