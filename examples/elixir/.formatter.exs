[inputs: ["*.{ex,exs}"], line_length: 150]
