"""What draws: image files to pixels, contact sheets, masks, matches and plots."""
