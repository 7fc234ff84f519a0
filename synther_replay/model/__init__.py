"""What a fit of the diffusion generator computes, and the machines that compute it."""
