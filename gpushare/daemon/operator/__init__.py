"""Operations on running containers: resize, pause, stop, cordon, reload."""
