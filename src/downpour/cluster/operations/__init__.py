"""Operations other than training: tokens, certificates, and checks of the shared directory."""
