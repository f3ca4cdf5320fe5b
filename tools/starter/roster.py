"""Which things the starter model knows: one picture each, and every word for it means that picture.

A small model that trains for a short time learns far more from four hundred everyday things with one picture each than from
nine hundred in four styles: "cat" that means five pictures is drawn as a blur of them.
"""

# Names in the flat set (where it lacks one, in noto).
KEEP = """
american-football artist-palette balloon baseball basketball bowling boxing-glove bullseye chess-pawn christmas-tree
crystal-ball fireworks fishing-pole framed-picture game-die ice-skate jack-o-lantern kite magic-wand party-popper
ping-pong pool-8-ball puzzle-piece ribbon roller-skate skateboard skis sled soccer-ball sports-medal teddy-bear tennis
trophy video-game volleyball wrapped-gift yarn joystick performing-arts

ant baby-chick bat bear bird black-cat blowfish bouquet bug butterfly cactus camel cat-face chicken chipmunk cow crab
crocodile deciduous-tree deer dog-face dolphin donkey dove dragon duck eagle elephant evergreen-tree ewe fallen-leaf
feather fish flamingo four-leaf-clover fox frog giraffe goat hamster hatching-chick hedgehog hibiscus hippopotamus
honeybee horse jellyfish kangaroo koala lady-beetle leaf-fluttering-in-wind leopard lion lizard lobster maple-leaf monkey
mouse mushroom nest-with-eggs octopus owl palm-tree panda parrot peacock penguin pig-face polar-bear potted-plant rabbit
raccoon rhinoceros rooster rose sauropod seedling shark sloth snail snake spider spider-web spiral-shell spouting-whale
squid sunflower swan t-rex tiger-face tropical-fish tulip turtle unicorn wolf zebra brown-mushroom blossom
cherry-blossom shrimp

avocado baby-bottle bacon baguette-bread banana beer-mug bell-pepper birthday-cake blueberries bottle-with-popping-cork
bowl-with-spoon bread broccoli bubble-tea butter candy carrot cheese-wedge cherries chocolate-bar cocktail-glass coconut
cookie cooking croissant cucumber cup-with-straw cupcake cut-of-meat doughnut ear-of-corn egg eggplant
fork-and-knife fork-and-knife-with-plate french-fries glass-of-milk grapes green-salad hamburger honey-pot hot-beverage
hot-dog hot-pepper ice-cream ice jar kitchen-knife kiwi-fruit leafy-green lemon lime lollipop mango meat-on-bone onion
pancakes peach pear pie pineapple pizza popcorn potato poultry-leg pretzel red-apple salt sandwich shortcake
soft-ice-cream spaghetti spoon steaming-bowl strawberry sushi taco tangerine teacup-without-handle teapot tomato
tropical-drink waffle watermelon wine-glass

accordion axe backpack banjo basket bathtub battery bed bell billed-cap books bow-and-arrow briefcase broom bucket
calendar camera candle carpentry-saw chair closed-book coat coin couch-and-lamp crayon crossed-swords crown
desktop-computer door dress drum electric-plug envelope fire-extinguisher flashlight flute gear gem-stone glasses gloves
graduation-cap guitar hammer handbag harp headphone high-heeled-shoe hiking-boot jeans key keyboard ladder laptop
light-bulb lipstick locked magnet magnifying-glass-tilted-left microphone microscope mirror mobile-phone money-bag
movie-camera musical-keyboard musical-note necktie newspaper open-book package paintbrush paperclip pen pencil pill
postbox radio red-paper-lantern ring running-shoe saxophone scarf scissors screwdriver shield mans-shoe shopping-bags
shopping-cart shorts shovel shower soap socks straight-ruler sunglasses t-shirt telephone telescope television test-tube
toilet toolbox toothbrush top-hat treasure-chest trumpet umbrella violin watch window womans-hat wrench womans-boot

airplane alarm-clock ambulance anchor articulated-lorry automobile beach-with-umbrella bicycle brick bridge-at-night bus
camping canoe carousel-horse castle church circus-tent cityscape closed-umbrella cloud cloud-with-lightning
cloud-with-rain cloud-with-snow comet compass crescent-moon delivery-truck desert desert-island droplet factory
ferris-wheel fire fire-engine flying-saucer fountain full-moon globe-showing-europe-africa helicopter high-voltage
hospital hourglass-done house houses kick-scooter lighthouse locomotive luggage milky-way minibus motor-scooter
motorcycle mountain office-building bullet-train pickup-truck police-car racing-car rainbow ringed-planet rock rocket
roller-coaster sailboat satellite school ship shooting-star snow-capped-mountain snowflake snowman star
statue-of-liberty stop-sign sun sun-behind-cloud sun-with-face sunrise taxi tent tornado tractor
umbrella-with-rain-drops volcano water-wave wood wheel

alien alien-monster angry-face astronaut baby bone boy brain broken-heart clown-face collision cook crying-cat
crying-face ear eye flexed-biceps foot ghost girl grinning-cat grinning-face man mermaid mouth nose ogre pouting-face
pouting-cat princess raised-hand red-heart robot santa-claus skull sleeping-face slightly-smiling-face
smiling-face-with-heart-eyes smiling-face-with-horns smiling-face-with-sunglasses thinking-face thumbs-up tooth
winking-face woman old-man old-woman mage love-letter heart-with-arrow loudly-crying-face face-with-tears-of-joy
check-mark cross-mark red-circle red-square red-triangle-pointed-up right-arrow up-arrow red-question-mark
red-exclamation-mark warning yin-yang
""".split()

# What a thing is called here where its name in the set is not what people say; the name itself is then not used.
CALLED = {
    "cat-face": "cat", "dog-face": "dog", "pig-face": "pig", "tiger-face": "tiger", "deciduous-tree": "tree",
    "evergreen-tree": "pine tree", "ewe": "sheep", "honeybee": "bee", "lady-beetle": "ladybug", "red-apple": "apple",
    "bottle-with-popping-cork": "bottle", "closed-book": "book", "red-heart": "heart", "automobile": "car",
    "crescent-moon": "moon", "red-circle": "circle", "red-square": "square", "red-triangle-pointed-up": "triangle",
    "mans-shoe": "shoe", "womans-hat": "sun hat", "womans-boot": "high boot", "straight-ruler": "ruler",
    "globe-showing-europe-africa": "earth", "magnifying-glass-tilted-left": "magnifying glass", "red-paper-lantern": "lantern",
    "headphone": "headphones", "couch-and-lamp": "sofa", "locked": "padlock", "chipmunk": "squirrel",
    "bug": "caterpillar", "hot-beverage": "cup of coffee", "teacup-without-handle": "cup of tea", "soft-ice-cream": "ice cream cone",
    "ice-cream": "bowl of ice cream", "steaming-bowl": "bowl of soup", "fork-and-knife-with-plate": "plate",
    "beer-mug": "beer", "wine-glass": "glass of wine", "cut-of-meat": "steak", "poultry-leg": "chicken leg",
    "locomotive": "train", "delivery-truck": "truck", "minibus": "van", "high-voltage": "lightning bolt",
    "spouting-whale": "whale", "gem-stone": "diamond", "wrapped-gift": "gift", "postbox": "mailbox",
    "jack-o-lantern": "pumpkin", "sauropod": "dinosaur", "spiral-shell": "seashell", "game-die": "dice",
    "tangerine": "orange", "hourglass-done": "hourglass", "flying-saucer": "ufo", "office-building": "skyscraper",
    "red-question-mark": "question mark", "red-exclamation-mark": "exclamation mark", "cooking": "fried egg",
    "flexed-biceps": "strong arm", "mage": "wizard", "water-wave": "wave", "beach-with-umbrella": "beach",
    "cloud-with-rain": "rain cloud", "cloud-with-snow": "snow cloud", "cloud-with-lightning": "thunderstorm",
    "musical-keyboard": "piano", "leaf-fluttering-in-wind": "leaf", "bathtub": "bath tub", "video-game": "game controller",
}  # fmt: skip

# Where several things have a claim on a word: whose it is.
OWNER = {
    "plane": "airplane", "clock": "alarm-clock", "football": "american-football", "lorry": "articulated-lorry",
    "little bird": "bird", "ball": "soccer-ball", "bug": "ant", "bike": "bicycle", "cake": "birthday-cake",
    "cocktail": "cocktail-glass", "computer": "desktop-computer", "fish": "fish", "mountain": "mountain", "phone": "mobile-phone",
    "boat": "sailboat", "dinosaur": "sauropod", "sun": "sun", "hat": "top-hat", "ice cream": "soft-ice-cream", "star": "star",
    "squid": "squid", "mushroom": "mushroom", "flower": "tulip", "train": "locomotive", "truck": "delivery-truck",
    "boot": "hiking-boot", "smile": "slightly-smiling-face", "sad face": "crying-face", "crying face": "crying-face",
    "scooter": "kick-scooter", "cup of tea": "teacup-without-handle", "moon": "crescent-moon", "melon": "watermelon",
    "happy cat": "grinning-cat", "chick": "baby-chick", "van": "minibus", "tree": "deciduous-tree", "heart": "red-heart",
}  # fmt: skip

# More words than `words.py` has.
ALSO_SAY = {
    "pencil": ["crayon pencil"], "chipmunk": ["red squirrel"], "elephant": ["big elephant"], "penguin": ["little penguin"],
    "tulip": ["flower", "blossoming flower"], "cup-with-straw": ["lemonade"], "bridge-at-night": ["bridge at night"],
    "straight-ruler": ["measuring ruler"], "right-arrow": ["arrow", "arrow to the right"], "up-arrow": ["arrow up"],
    "check-mark": ["tick", "tick mark"], "cross-mark": ["x mark", "red x"], "red-circle": ["disc", "dot"],
    "red-square": ["box shape"], "cook": ["chef"], "love-letter": ["letter with a heart"], "green-salad": ["salad", "bowl of salad"],
    "performing-arts": ["theatre masks", "masks"], "camping": ["campsite"], "hippopotamus": ["hippo"], "rhinoceros": ["rhino"],
    "airplane": ["airliner"], "motor-scooter": ["vespa"], "locomotive": ["railway"], "sunrise": ["sun over the sea"],
    "thumbs-up": ["thumb"], "automobile": ["sedan"], "grinning-face": ["happy face", "happy smiley"], "ice": ["block of ice"],
    "hot-beverage": ["coffee cup", "cup", "mug of coffee"], "treasure-chest": ["treasure", "chest"], "graduation-cap": ["student hat"],
    "cheese-wedge": ["slice of cheese"], "bread": ["slice of bread"], "pie": ["apple pie"], "carrot": ["root"],
    "calendar": ["date sheet"], "necktie": ["tie"], "microphone": ["singing microphone"], "stop-sign": ["traffic sign"],
    "statue-of-liberty": ["statue"], "wheel": ["wagon wheel"], "desert": ["desert with a cactus"], "cityscape": ["houses of a city"],
    "man": ["man with a moustache"], "shopping-cart": ["shopping trolley", "cart"], "toothbrush": ["tooth brush"],
    "snake": ["viper"], "lizard": ["gecko"], "leopard": ["cheetah"], "goat": ["billy goat"], "dragon": ["monster dragon"],
}  # fmt: skip

# The hue that another colour replaces, where it is not the one that covers most: a butterfly's wings, not its dark lines.
MAIN = {
    "butterfly": 18, "bus": 45, "bicycle": 350, "sailboat": 48, "racing-car": 345, "motorcycle": 345, "wine-glass": 320,
}  # fmt: skip

# Seldom asked for: trained on less often.
SELDOM = set("""
bowling fireworks fishing-pole framed-picture ice-skate joystick party-popper performing-arts ping-pong pool-8-ball ribbon
roller-skate skis sled volleyball yarn sports-medal
blowfish chipmunk donkey dove fallen-leaf feather goat hamster hatching-chick hibiscus hippopotamus jellyfish
leopard lizard lobster nest-with-eggs peacock raccoon rhinoceros seedling sloth spider-web spiral-shell squid tropical-fish
brown-mushroom blossom cherry-blossom shrimp crab bug ant
baby-bottle bacon bell-pepper blueberries bowl-with-spoon bubble-tea butter coconut cucumber cut-of-meat green-salad ice jar
leafy-green lime mango meat-on-bone onion poultry-leg pretzel salt waffle tropical-drink shortcake
accordion banjo battery calendar crayon electric-plug fire-extinguisher flute graduation-cap harp lipstick mirror
movie-camera necktie newspaper paperclip pill postbox red-paper-lantern shopping-bags shopping-cart shorts shovel
straight-ruler test-tube womans-hat womans-boot screwdriver saxophone soap
articulated-lorry brick camping canoe carousel-horse circus-tent cityscape closed-umbrella cloud-with-snow comet compass
desert houses kick-scooter luggage milky-way minibus bullet-train pickup-truck satellite shooting-star
statue-of-liberty sun-with-face sunrise tornado umbrella-with-rain-drops wheel roller-coaster cloud-with-lightning
alien-monster angry-face collision cook crying-cat ear flexed-biceps foot grinning-cat mermaid mouth nose ogre pouting-cat
slightly-smiling-face smiling-face-with-horns thinking-face winking-face old-man old-woman love-letter heart-with-arrow
loudly-crying-face face-with-tears-of-joy check-mark cross-mark up-arrow red-question-mark red-exclamation-mark warning
yin-yang broken-heart
""".split())
